"""What the device plugin logs when the driver reports an XID error."""

import json

from orchlab.gpu_operator.devices import Machine, State, registration

MACHINE = Machine("11111111-2222-3333-4444-555555555555", "h100-0", "H100-80", 4)


def test_an_xid_of_the_hardware_is_logged_with_the_device_that_it_takes_away():
    sound, ill = registration(MACHINE, State(), "single", ""), registration(MACHINE, State(ill={"2": 79}), "single", "")
    assert not any("Xid" in line for line in sound.lines)
    device = json.loads(ill.text)["resources"]["nvidia.com/gpu"]["unhealthy"][0]
    assert ill.lines[-2:] == (f"XidCriticalError: Xid=79 on Device={device}; marking device as unhealthy.",
                              f"'nvidia.com/gpu' device marked unhealthy: {device}")


def test_an_xid_of_an_application_is_not_logged():
    assert not any("Xid" in line for line in registration(MACHINE, State(ill={"2": 13}), "single", "").lines)


def test_under_mig_every_instance_of_the_gpu_is_marked():
    whole, halves = [["7g.80gb", 0, 8]], [["3g.40gb", 0, 4], ["3g.40gb", 4, 4]]
    state = State(mig={"0": whole, "1": halves, "2": whole, "3": whole}, ill={"1": 48})
    lines = registration(MACHINE, state, "mixed", "").lines
    assert sum(line.startswith("XidCriticalError: Xid=48 on Device=MIG-") for line in lines) == 2
    assert sum(line.startswith("'nvidia.com/mig-3g.40gb' device marked unhealthy: MIG-") for line in lines) == 2
