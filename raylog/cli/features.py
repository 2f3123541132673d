"""``raylog features``: what Kafka's ``kafka-features describe`` prints."""

from __future__ import annotations

from dataclasses import asdict

from raylog.cli.connection import CONNECT_TIMEOUT_S, Address, Folder, Timeout, find_cluster
from raylog.cli.output import AsJson, notice, print_json, print_text
from raylog.cli.remote import ClusterApp
from raylog.kafka.features import level_text

app = ClusterApp(help="The versions of features that a cluster supports and uses.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Show features, as Kafka's ApiVersions tells them."""


@app.command("describe")
def describe(
    folder: Folder = None, address: Address = None, timeout: Timeout = CONNECT_TIMEOUT_S, as_json: AsJson = False
) -> None:
    """Print each feature with the versions that are supported and the one that is finalized.

    A feature that is not there is off, as share groups are. No version can be chosen.
    """
    with find_cluster(folder, address, timeout).admin() as admin:
        told = admin.describe_features()
    if as_json:
        print_json({"epoch": told.epoch, "features": [asdict(each) for each in told.features.values()]})
        return
    epoch = told.epoch if told.epoch >= 0 else "-"
    for each in told.features.values():
        lowest, highest = level_text(each.name, each.min_version), level_text(each.name, each.max_version)
        finalized = "0" if each.finalized_version is None else level_text(each.name, each.finalized_version)
        print_text(
            f"Feature: {each.name}\tSupportedMinVersion: {lowest}\tSupportedMaxVersion: {highest}\t"
            f"FinalizedVersionLevel: {finalized}\tEpoch: {epoch}"
        )
    if not told.features:
        notice("the cluster tells of no features: it is of an earlier version of raylog")
