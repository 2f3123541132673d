"""The console: one process with a web page that shows a running cluster (``raylog console``).

A browser gets HTML that the server has rendered; a little script of the console's own fetches the
page again every few seconds and replaces what has changed. The console asks the cluster as any
command does, through one admin client and one set of credentials, so whatever authorises that user
at the listeners says what the page may show. No server of a cluster imports this room, and
``import raylog`` does not either: starlette, uvicorn and jinja2 come with ``raylog[console]``.

    serving     the address, the password, TLS, and the process
    app         the table of pages, and what becomes of errors
    protection  what a browser must prove, and the headers of every answer
    view        one cluster's answers, each kept for a moment
    pages       templates and the words for errors
    …           one module for each page
"""
