"""Batch normalization beside the Bayesian scale on scikit-learn's digits: `make demo`."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bayesnorm

EPOCHS, BATCH = 30, 32
ROWS = [
    ("batch", "point", False, 0.05),
    ("batch", "point", True, 0.05),
    ("weight", "bayes", True, 0.02),
    ("analytic", "bayes", True, 0.02),
]


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardized 8x8 images and labels, 1,000 for training and the other 797 for testing."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = (images - images.mean()) / images.std()
    return images[order[:1000]], labels[order[:1000]], images[order[1000:]], labels[order[1000:]]


def train(net: nn.Module, x: Tensor, y: Tensor, lr: float, project: bool) -> None:
    """The paper's recipe: SGD with Nesterov momentum, projection after every step, no weight decay."""
    optimizer = torch.optim.SGD(bayesnorm.param_groups(net, lr), momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / EPOCHS))
    elbo = bayesnorm.ELBO(net, n_data=len(x), nll="log_probs")
    generator = torch.Generator().manual_seed(1)
    net.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = elbo(net(x[batch]), y[batch]).total
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            bayesnorm.project_(net, weights=project)
        schedule.step()


def main() -> None:
    """Train four networks and print their test accuracy and negative log-likelihood."""
    train_x, train_y, test_x, test_y = digits()
    print(f"{'method':28s}{'accuracy':>9s}{'NLL':>8s}{'MC-10':>8s}{'MC-30':>8s}")
    for norm, scale, project, lr in ROWS:
        torch.manual_seed(0)
        stats = bayesnorm.input_stats(train_x)
        net = bayesnorm.models.all_cnn(norm, scale, "same", width=0.25, in_channels=1, input_stats=stats)
        bayesnorm.init_from_data_(net, train_x[:128])
        train(net, train_x, train_y, lr, project)
        name = "+".join([norm, *(["projection"] if project else []), *(["bayes"] if scale == "bayes" else [])])
        row = [bayesnorm.predict(net, test_x, samples=n) for n in (0, 10, 30)]
        accuracy = (row[0].probs.argmax(1) == test_y).float().mean()
        nll = [nn.functional.nll_loss(out.log_probs, test_y).item() for out in row]
        shown = nll if scale == "bayes" else nll[:1]
        print(f"{name:28s}{100 * accuracy:8.2f}%" + "".join(f"{value:8.4f}" for value in shown))
    ratios = [(post.sigma / post.mean).mean().item() for post in bayesnorm.posterior(net).values()]
    print("learned sigma/s per layer (analytic):", " ".join(f"{value:.2f}" for value in ratios))


if __name__ == "__main__":
    main()
