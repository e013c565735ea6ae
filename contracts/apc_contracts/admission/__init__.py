"""Admission: one small function per rule, an ordered tuple of rules, and the verdict they produce."""
