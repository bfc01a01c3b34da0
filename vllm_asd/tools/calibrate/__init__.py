"""Calibrate on the user's own server: which limits gain most rounds at a cost that the user caps?

`rejections` measures what strict verification throws away, `grid` spans settings around it, `search` tries
them by paired runs (`outcome`), and `freeze` writes what was found as a file for `vllm serve --config`.
"""
