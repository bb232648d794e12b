"""The peak is that of the work since it was last forgotten."""

import mmap

from jobs.peak_memory import forget_peak, peak_mib, resident_mib

MIB = 2**20


def test_memory_taken_and_given_back_stays_in_the_peak_until_it_is_forgotten():
    forget_peak()
    before = resident_mib()
    with mmap.mmap(-1, 64 * MIB) as taken:  # fresh from the system, unlike what was freed before
        taken.write(b"1" * (64 * MIB))
        assert resident_mib() - before > 60
    assert peak_mib() - before > 60
    forget_peak()
    assert peak_mib() - before < 30
