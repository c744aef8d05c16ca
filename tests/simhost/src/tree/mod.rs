//! The files of a scenario below one root folder: `hwloc.xml`, `sys/`, `proc/` and `dev/kmsg`.
mod config;
mod hwloc;
mod procfs;
mod sysfs;

pub use hwloc::xml;

use crate::scenario::Scenario;
use crate::topology::Topology;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the whole tree of a scenario into a folder that exists.
pub fn write(scenario: &Scenario, root: &Path) -> io::Result<()> {
    let topology =
        Topology::new(scenario).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.0))?;
    let files = Files {
        root: root.to_path_buf(),
    };
    files.text("hwloc.xml", &xml(scenario, &topology))?;
    sysfs::write(&files, scenario, &topology)?;
    procfs::write(&files, scenario)
}

/// A folder into which files and links are written, with folders as needed.
pub(crate) struct Files {
    root: PathBuf,
}

impl Files {
    pub(crate) fn bytes(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = self.root.join(path);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, content)
    }
    pub(crate) fn text(&self, path: &str, content: &str) -> io::Result<()> {
        self.bytes(path, content.as_bytes())
    }
    /// One line, as most files of sysfs hold.
    pub(crate) fn line(&self, path: &str, content: &str) -> io::Result<()> {
        self.text(path, &format!("{content}\n"))
    }
    pub(crate) fn folder(&self, path: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.root.join(path))
    }
    /// A relative link between two paths below the root.
    pub(crate) fn link(&self, path: &str, target: &str) -> io::Result<()> {
        let full = self.root.join(path);
        if let Some(folder) = full.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let up = "../".repeat(path.split('/').count() - 1);
        std::os::unix::fs::symlink(format!("{up}{target}"), full)
    }
}

/// `0-3,8` for a list of ranges.
pub(crate) fn cpu_list(ranges: impl Iterator<Item = [u32; 2]>) -> String {
    ranges
        .map(|[a, b]| {
            if a == b {
                a.to_string()
            } else {
                format!("{a}-{b}")
            }
        })
        .collect::<Vec<_>>()
        .join(",")
}

/// Words of 32 bits, highest first, each with `prefix`.
pub(crate) fn cpu_mask(ranges: &[[u32; 2]], prefix: &str) -> String {
    let last = ranges.iter().map(|r| r[1]).max().unwrap_or(0);
    let mut words = vec![0_u32; last as usize / 32 + 1];
    for cpu in ranges.iter().flat_map(|&[a, b]| a..=b) {
        words[cpu as usize / 32] |= 1 << (cpu % 32);
    }
    words
        .iter()
        .rev()
        .map(|w| format!("{prefix}{w:08x}"))
        .collect::<Vec<_>>()
        .join(",")
}
