#!/usr/bin/env python3
"""Times training steps of ResNet-50 and VGG-16 on one GPU, and the same steps in PyTorch, in turn.

    python3 tests/gpu/image_step.py PROGRAM [--size full|quick|tiny] [--device cuda|cpu] [--budget SECONDS]
                                    [--compile whole|none] [--batch N] [--no-peer]

PROGRAM is gpu_image_step_bench. A step is the normalisation of images that lie on the device as bytes, forward, backward and
SGD with momentum 0.9 and weight decay 5e-4; in ImageNet's form 224 x 224 pixels and 1000 classes, in CIFAR's 32 x 32 and 10. The peer
is the same network in plain torch.nn, channels-last, with autocast in bf16 and fp16, GradScaler in fp16, fused SGD,
torch.compile of the network with its loss, and cudnn.benchmark. In float32 neither side uses TF32. The case listed first is also run without
torch.compile if time is left.

Prints a line of JSON per case: Motley's (see gpu_image_step_bench), and in "peer" the milliseconds of PyTorch's step; "ratio"
is PyTorch's time over Motley's: above 1, Motley is faster. A peer whose network has another number of parameters is a failure. Where PyTorch is
not installed, or time has run out, Motley's alone. --budget is the time in which all cases are done.
"""
import sys

import steps

DEPTHS = [2, 2, 3, 3, 3]  # convolutions of VGG-16's stages
WIDTHS = [64, 128, 256, 512, 512]


def resnet50(torch, imagenet, classes):
    nn = torch.nn

    def conv(n, out, kernel, stride=1):
        return nn.Conv2d(n, out, kernel, stride, kernel // 2, bias=False)

    class Block(nn.Module):
        def __init__(self, n, width, stride):
            super().__init__()
            self.conv1, self.bn1 = conv(n, width, 1), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
            self.shortcut = nn.Sequential()
            if stride != 1 or n != 4 * width:
                self.shortcut = nn.Sequential(conv(n, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.relu(self.bn1(self.conv1(x)))
            y = self.relu(self.bn2(self.conv2(y)))
            return self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))

    layers = [conv(3, 64, 7, 2) if imagenet else conv(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    if imagenet:
        layers.append(nn.MaxPool2d(3, 2, 1))
    n = 64
    for stage, blocks in enumerate([3, 4, 6, 3]):
        for block in range(blocks):
            layers.append(Block(n, 64 << stage, 2 if stage > 0 and block == 0 else 1))
            n = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n, classes))


def vgg16(torch, imagenet, classes):
    nn = torch.nn
    layers, n = [], 3
    for depth, width in zip(DEPTHS, WIDTHS):
        for _ in range(depth):
            layers.append(nn.Conv2d(n, width, 3, padding=1))
            if not imagenet:
                layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            n = width
        layers.append(nn.MaxPool2d(2))
    if not imagenet:
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(n, classes))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(49 * n, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4096, classes))


def lenet(torch, _imagenet, classes):
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes))


NETWORKS = {"resnet50": resnet50, "vgg16": vgg16, "lenet": lenet}  # lenet: for a device that is simulated


def make_step(torch, _network, compiled, device, model, batch, side, precision):
    imagenet = model.endswith("_imagenet")
    classes = 1000 if imagenet else 10
    network = NETWORKS[model.removesuffix("_imagenet")](torch, imagenet, classes)
    network = network.to(device, memory_format=torch.channels_last).train()
    pixels = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device=device) * 7 % classes

    def forward():
        x = (pixels.float() / 255 - 0.5) / 0.25
        with steps.autocast(torch, device, precision):
            scores = network(x)
        return torch.nn.functional.cross_entropy(scores.float(), labels)

    if compiled == "whole":
        forward = torch.compile(forward, dynamic=False)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4, fused=device == "cuda")
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step, sum(parameter.numel() for parameter in network.parameters())


IMAGENET = [("resnet50_imagenet", 224), ("vgg16_imagenet", 224)]
CIFAR = [("resnet50", 32), ("vgg16", 32)]

SUITE = steps.suite(
    bench="image_step",
    size="side",
    cases={
        "full": [(*network, precision) for networks, precision in
                 ((IMAGENET, "bf16"), (IMAGENET, "fp32"), (CIFAR, "bf16"), (IMAGENET, "fp16"), (CIFAR, "fp32"), (CIFAR, "fp16"))
                 for network in networks],
        "quick": [("resnet50_imagenet", 224, "bf16"), ("resnet50", 32, "bf16"), ("vgg16", 32, "fp32")],
        "tiny": [("lenet", 32, "fp32"), ("lenet", 32, "bf16"), ("lenet", 32, "fp16"), ("resnet50", 8, "bf16")],
    },
    checks={"full": IMAGENET, "quick": CIFAR, "tiny": [("lenet", 32)]},
    batch={"full": "fit", "quick": "32", "tiny": "2"},
    networks={"plain": lambda: True},
    compile=["whole", "none"],
    extra=[("plain", "none")],
    make_step=make_step,
)

if __name__ == "__main__":
    sys.exit(steps.main(SUITE, __doc__))
