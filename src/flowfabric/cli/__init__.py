"""The command line: parse, call, render. Every command is a few lines over the REST API, or over a
store in this process when `--url` names one."""
