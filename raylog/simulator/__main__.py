import sys

from raylog.simulator.replay import main

if __name__ == "__main__":
    sys.exit(main())
