"""The peak is that of the work since it was last forgotten."""

import subprocess
import sys

# In a process of its own: what others' threads give back meanwhile would be counted here.
WORK = """
import mmap
from jobs.peak_memory import forget_peak, peak_mib, resident_mib

size = 64 * 2**20
forget_peak()
before = resident_mib()
with mmap.mmap(-1, size) as taken:
    for at in range(0, size, mmap.PAGESIZE):
        taken[at] = 1
    print(resident_mib() - before)
print(peak_mib() - before)
forget_peak()
print(peak_mib() - before)
"""


def test_memory_taken_and_given_back_stays_in_the_peak_until_it_is_forgotten():
    ran = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    resident, peak, forgotten = map(float, ran.stdout.split())
    assert resident > 60
    assert peak > 60
    assert forgotten < 30
