#!/usr/bin/env python3
"""Writes schedules.json: the rates of torch.optim.lr_scheduler's CosineAnnealingLR, StepLR and MultiStepLR."""
import json
import os

import torch

BASE = 0.1


def rates(make, count):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    scheduler = make(optimizer)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def main():
    s = torch.optim.lr_scheduler
    golden = {
        "cosine": rates(lambda o: s.CosineAnnealingLR(o, T_max=30), 31),
        "cosine_to_0.01": rates(lambda o: s.CosineAnnealingLR(o, T_max=30, eta_min=0.01), 31),
        "step": rates(lambda o: s.StepLR(o, step_size=7, gamma=0.3), 40),
        "milestones": rates(lambda o: s.MultiStepLR(o, milestones=[3, 4, 20], gamma=0.2), 40),
    }
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "schedules.json"), "w") as file:
        json.dump(golden, file, indent=1)


if __name__ == "__main__":
    main()
