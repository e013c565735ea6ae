"""Consume from RabbitMQ: take deliveries, decode them, run handlers, acknowledge, and recover consumers."""
