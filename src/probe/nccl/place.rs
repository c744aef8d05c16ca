//! Where libnccl.so.2 may lie: the dynamic loader's own path first, then where Python's wheels and Conda put it. Looks at names
//! in folders and opens nothing.

use crate::ffi::nccl::SONAME;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Below a folder of Python packages.
const WHEEL: &str = "nvidia/nccl/lib/libnccl.so.2";

/// What to open, in order. A path that the operator gave is the only one.
pub(super) fn candidates(given: Option<&Path>) -> Vec<OsString> {
    if let Some(given) = given {
        return vec![given.as_os_str().to_owned()];
    }
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let prefixes = [folder("VIRTUAL_ENV"), folder("CONDA_PREFIX")];
    let home = folder("HOME").map(|home| home.join(".local"));
    let system = ["/usr/local", "/usr", "/opt/venv", "/opt/conda"].map(|p| Some(PathBuf::from(p)));
    let mut all = vec![OsString::from(SONAME)];
    for prefix in prefixes.into_iter().chain([home]).chain(system).flatten() {
        let found = in_prefix(&prefix).into_iter().map(PathBuf::into_os_string);
        all.extend(found);
    }
    all
}

/// Those that exist below one prefix: `lib/libnccl.so.2` of Conda, and wheels of each Python.
fn in_prefix(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let mut places = vec![lib.join(SONAME)];
    let pythons = std::fs::read_dir(&lib).into_iter().flatten().flatten();
    let mut pythons: Vec<PathBuf> = pythons
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path())
        .collect();
    pythons.sort();
    for python in pythons.into_iter().rev() {
        for packages in ["site-packages", "dist-packages"] {
            places.push(python.join(packages).join(WHEEL));
        }
    }
    places.retain(|place| place.is_file());
    places
}

/// Where was looked, for a host on which none was found.
pub(super) fn looked(candidates: &[OsString]) -> String {
    let names: Vec<String> = candidates
        .iter()
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    match names.as_slice() {
        [given] if given != SONAME => given.clone(),
        _ => format!(
            "{} on the loader's path (LD_LIBRARY_PATH, ld.so.conf), and nvidia/nccl/lib of Python packages in VIRTUAL_ENV, CONDA_PREFIX, ~/.local, /usr/local, /usr, /opt/venv and /opt/conda",
            names.join(", ")
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_found_and_a_given_path_is_the_only_one() {
        let prefix = tempfile::tempdir().unwrap();
        let wheel = prefix
            .path()
            .join("lib/python3.12/site-packages")
            .join(WHEEL);
        std::fs::create_dir_all(wheel.parent().unwrap()).unwrap();
        assert!(in_prefix(prefix.path()).is_empty());
        std::fs::write(&wheel, "").unwrap();
        assert_eq!(in_prefix(prefix.path()), [wheel]);
        assert_eq!(candidates(Some(Path::new("/x/nccl.so"))), ["/x/nccl.so"]);
        assert_eq!(candidates(None).first().unwrap(), SONAME);
    }
}
