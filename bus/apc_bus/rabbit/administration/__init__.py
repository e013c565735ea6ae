"""Administer a RabbitMQ broker: topology, users and rights, the management API."""
