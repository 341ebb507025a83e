import pytest

from orchlab import clock
from orchlab.errors import BadInput


@pytest.mark.parametrize("text, seconds", [
    ("90s", 90), ("2h30m", 9000), ("500ms", 0.5), ("1d", 86400), ("1.5h", 5400), ("0", 0), ("45", 45), (45, 45), (0.25, 0.25),
    (" 10m ", 600), ("1h0m1s", 3601)])
def test_parse(text, seconds):
    assert clock.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "h", "2 h", "-5s", "5 minutes", "2h30", "1e3", "nan", "inf", None, True, -1, float("nan"), "400d",
                                  "٣s", "1m\n2"])
def test_parse_refuses(text):
    with pytest.raises(BadInput) as caught:
        clock.parse(text, "orchlab/run-for")
    assert caught.value.field == "orchlab/run-for" and caught.value.remedy


@pytest.mark.parametrize("seconds, text", [(0, "0s"), (0.25, "250ms"), (90, "1m30s"), (9000, "2h30m"), (86400, "24h"), (59.9996, "1m")])
def test_format(seconds, text):
    assert clock.format(seconds) == text


@pytest.mark.parametrize("seconds", [0.001, 1, 61.5, 3600, 90061])
def test_format_and_parse_agree(seconds):
    assert clock.parse(clock.format(seconds)) == pytest.approx(seconds)


def test_scaling_goes_both_ways():
    hour = clock.Clock(60)
    assert hour.real_seconds(7200) == 120 and hour.simulated_seconds(120) == 7200
    assert hour.describe() == "1 real second is 1m of simulated time"
    assert clock.Clock().factor == 60


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), 1e6, "60", None, True])
def test_a_bad_factor_is_refused(factor):
    with pytest.raises(BadInput) as caught:
        clock.Clock(factor)
    assert caught.value.field == "clock" and caught.value.value is factor
