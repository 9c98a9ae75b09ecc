"""Ground floor of Lengthwise: error tree, ModelBundle format, log and table readers, command line.

`training` and `scheduler_adapters` stand on this package and meet in its files. Start with
`bundle.py`, then `tables/reading.py`.
"""
