"""Recipes and their search, training and measuring, in their own processes."""
