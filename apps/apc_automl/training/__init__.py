"""Recipes and their search, training and measuring, in processes of their own."""
