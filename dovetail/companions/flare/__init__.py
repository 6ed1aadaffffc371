"""A run as a job of an NVFlare federation: exported, carried, run at its server and sites."""
