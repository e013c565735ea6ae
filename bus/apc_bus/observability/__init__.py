"""Logs, traces and the labels of metrics, shared by every service."""
