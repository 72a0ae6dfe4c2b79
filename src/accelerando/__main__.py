"""``python -m accelerando`` is the same as the ``accelerando`` command."""

import signal

if __name__ == "__main__":
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:  # until the command has begun, Ctrl-C ends it without a traceback of imports
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main

    if is_heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
