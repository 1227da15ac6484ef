"""adjoints"""
