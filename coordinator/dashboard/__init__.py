"""A page for a browser that shows what the two servers and a run do.

`watch` asks the servers and remembers rounds, `app` serves what it knows, `page.html` shows it.
"""
