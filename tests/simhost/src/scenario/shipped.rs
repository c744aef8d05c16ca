//! The scenarios that travel inside the library and the launcher.
macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        const ALL: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../scenarios/", $name, ".toml")))),*];
    };
}

shipped![
    "hgx-h200-x8",
    "rtxpro6000-x8-root-complex",
    "rtxpro6000-x8-zeroed",
    "switch-pairs-x8",
    "two-gpus-no-p2p",
    "geforce-x2-refused",
    "sixteen-gpus",
    "one-gpu",
    "opaque-vm",
    "opaque-vm-mirrored",
    "hang-one-pair",
    "acs-redirect",
    "downtrained-link",
    "posted-write-collapse",
    "pool-writes-lost",
];

/// Text of a shipped scenario.
pub fn text(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(n, _)| *n == name).map(|(_, t)| *t)
}

/// Names, in the order of the list above.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(n, _)| *n)
}
