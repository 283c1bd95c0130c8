"""The examples run as they are, on the simulated device where there is no GPU."""

import os
import subprocess
import sys
import unittest

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "python")


class Examples(unittest.TestCase):
    def run_example(self, name, *arguments):
        done = subprocess.run(
            [sys.executable, os.path.join(EXAMPLES, name), *arguments], capture_output=True, text=True, timeout=300
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_allocation_and_reuse(self):
        self.assertIn("same place: True", self.run_example("allocation_and_reuse.py"))

    def test_two_streams(self):
        self.assertIn("0 wrong", self.run_example("two_streams.py"))

    def test_monitoring(self):
        self.assertIn("10 block(s) held", self.run_example("monitoring.py"))

    def test_monte_carlo(self):
        said = self.run_example("monte_carlo.py", "--paths", "500", "--iterations", "20")
        self.assertIn("20 iterations", said)


if __name__ == "__main__":
    unittest.main()
