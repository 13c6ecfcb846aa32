# SPDX-License-Identifier: Apache-2.0
import torch

from bert4rec.train.averaging import WeightAverage


def test_the_average_follows_its_rule_and_gives_the_weights_back():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, dtype=torch.float64))
    average = WeightAverage({"weight": weight}, 0.4)
    expected = weight.detach().clone()
    for step in range(1, 8):
        weight.data += torch.randn(3, dtype=torch.float64)
        average.update()
        decay = min(0.4, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weight.detach()
        torch.testing.assert_close(average.weights["weight"], expected)
    trained, storage = weight.detach().clone(), weight.data_ptr()
    try:
        with average.in_place_of_weights():
            torch.testing.assert_close(weight.detach(), expected)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert torch.equal(weight.detach(), trained)
        assert weight.data_ptr() == storage


def test_a_copied_state_continues_the_average():
    def steps(average, weight, count):
        for i in range(count):
            weight.data += i
            average.update()

    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    whole, rest = WeightAverage({"w": first}, 0.9), WeightAverage({"w": second}, 0.9)
    steps(whole, first, 3)
    second.data.copy_(first.data)
    for name, tensor in whole.weights.items():
        rest.weights[name].copy_(tensor)
    rest.state()["steps"].copy_(whole.state()["steps"])
    steps(whole, first, 4)
    steps(rest, second, 4)
    assert torch.equal(whole.weights["w"], rest.weights["w"])
