"""Rate sweeps: laws of the bisection, and the same results here, on processes and on a Dask cluster."""

from __future__ import annotations

import math
import warnings
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlib.errors import ConfigError
from kvlib.serving.sweep import _bracket, highest_rate, latency_curve, run_all, run_at
from kvlib.workloads import sharegpt_like
from kvlib.workloads.synthetic import fixed_lengths

RATES = [0.5, 1.0, 2.0, 4.0]


class TestBisection:
    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(st.floats(1e-3, 1e4))
    def test_the_bracket_holds_the_limit_and_spans_a_factor_of_two(self, wall):
        low, high = _bracket(lambda rate: rate <= wall, 0.05)
        assert low <= wall < high == 2 * low

    @pytest.mark.parametrize("memory", ["max", "paged"])
    def test_the_answer_meets_the_limit_and_one_per_cent_more_does_not(self, memory):
        load = {"num_requests": 150, "seed": 3, "memory": memory}
        best = highest_rate(sharegpt_like, precision=0.01, **load)
        assert run_at(sharegpt_like, best, **load).result.normalized_latency_s <= 0.050
        # The upper end of the last interval was found beyond the limit; it lies within 1 % above the answer.
        step = 2 ** math.floor(math.log2(best))
        while step > 0.01 * best:
            step /= 2
        assert run_at(sharegpt_like, best + step, **load).result.normalized_latency_s > 0.050

    def test_a_looser_limit_never_lowers_the_rate(self):
        best = [highest_rate(sharegpt_like, limit_s=x, num_requests=100) for x in (0.02, 0.03, 0.05)]
        assert best == sorted(best) and best[0] < best[-1]

    def test_paging_against_reservation(self):
        """Oracle L7.rate: paged over Oracle in 1.5 to 3, over Max above 2.5."""
        paged, oracle, reserved = (
            highest_rate(sharegpt_like, num_requests=300, memory=m) for m in ("paged", "oracle", "max")
        )
        assert 1.5 <= paged / oracle <= 3
        assert paged / reserved > 2.5

    @pytest.mark.parametrize(
        "wrong, words",
        [
            ({"limit_s": 0}, "limit_s"),
            ({"limit_s": float("nan")}, "limit_s"),
            ({"limit_s": True}, "limit_s"),
            ({"limit_s": 1e-6}, "idle server"),  # a decode step alone takes longer
            ({"limit_s": 1e6}, "some rate exceeds"),
            ({"precision": 0}, "precision"),
            ({"precision": 1.0}, "precision"),
            ({"max_len": 8}, "rejected"),
            ({"max_length": 8}, "no such knob"),
        ],
    )
    def test_bad_input_is_refused_by_name(self, wrong, words):
        with pytest.raises(ConfigError, match=words):
            highest_rate(partial(fixed_lengths, num_input_tokens=8, num_output_tokens=4), num_requests=20, **wrong)


class TestPlaces:
    def test_processes_give_what_one_gives(self):
        pytest.importorskip("joblib")
        alone = latency_curve(sharegpt_like, RATES, num_requests=40)
        assert latency_curve(sharegpt_like, RATES, num_requests=40, jobs=2) == alone
        assert [point.rate for point in alone] == RATES

    def test_a_dask_cluster_gives_what_one_gives(self):
        """Issue 5, item 6: two local workers, through joblib's own Dask backend."""
        distributed = pytest.importorskip("distributed")
        pytest.importorskip("joblib")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the cluster warns about ports that other runs use
            with distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
            ) as cluster:
                spread = latency_curve(
                    sharegpt_like, RATES, num_requests=40, dask_address=cluster.scheduler_address
                )
        assert spread == latency_curve(sharegpt_like, RATES, num_requests=40)

    def test_progress_counts_every_task_once(self):
        seen = []
        run_all(pow, [{"base": 2, "exp": n} for n in range(3)], progress=lambda *args: seen.append(args))
        assert seen == [(1, 3), (2, 3), (3, 3)]

    @pytest.mark.parametrize(
        "wrong", [{"jobs": 0}, {"jobs": True}, {"jobs": "2"}, {"jobs": 2, "dask_address": "tcp://127.0.0.1:1"}]
    )
    def test_bad_places_are_refused(self, wrong):
        with pytest.raises(ConfigError, match="jobs"):
            run_all(dict, [{}], **wrong)
