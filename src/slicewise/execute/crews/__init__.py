"""Crews: long-living workers that are given orders one by one."""
