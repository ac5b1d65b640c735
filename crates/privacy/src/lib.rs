//! Personal data and secrets in text: finding, replacing, deleting by id; decontamination against evaluation sets.
