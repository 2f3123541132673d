"""``raylog features``: what Kafka's ``kafka-features describe`` prints."""

from __future__ import annotations

from dataclasses import asdict

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.remote import ClusterApp

app = ClusterApp(help="The versions of features that a cluster supports and uses.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Show features, as Kafka's ApiVersions tells them."""


@app.command("describe")
def describe(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """Print each feature with the versions that are supported and the one that is finalized."""
    with find_cluster(folder, address, timeout).admin() as admin:
        told = admin.describe_features()
    if as_json:
        print_json({"epoch": told.epoch, "features": [asdict(each) for each in told.features.values()]})
        return
    epoch = told.epoch if told.epoch >= 0 else "-"
    for each in told.features.values():
        print_text(
            f"Feature: {each.name}\tSupportedMinVersion: {each.min_version}\tSupportedMaxVersion: {each.max_version}\t"
            f"FinalizedVersionLevel: {each.finalized_version or 0}\tEpoch: {epoch}"
        )
    if not told.features:
        notice("the cluster tells of no features: nothing of it is switched on by a version")
