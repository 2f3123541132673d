"""What can be watched of a running cluster: the table of metrics, a process's registry, and the text
that Prometheus reads.

Machines and servers count in plain integers, and know nothing of this room. Each server process has
a ``Registry`` (``registry``); its collectors read the integers when somebody asks, and at no other
time. A Broker asks the processes of its node, joins what they say (``joined``) and shows it at
``/metrics`` (``exposition``, ``endpoint``). ``table`` names every metric; ``docs/metrics.md`` is
written from it.
"""
