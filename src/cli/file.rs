//! Files that a command writes for people and programs: refused early when they cannot become one, and never seen half
//! written, because they are written beside their name and renamed.

use super::exit::Stop;
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// Refuses, in the words of `option`, a path that cannot become a file.
pub(super) fn check(option: &str, path: &Path) -> Result<(), Stop> {
    let shown = path.display();
    if path.as_os_str() == "-" {
        return Err(Stop::usage(format!("{option}: '-' is no file")));
    }
    if path.is_dir() {
        return Err(Stop::usage(format!(
            "{option}: {shown} is a folder; name a file in it"
        )));
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    match parent.filter(|p| !p.is_dir()) {
        Some(parent) => Err(Stop::usage(format!(
            "{option}: there is no folder {}",
            parent.display()
        ))),
        None => Ok(()),
    }
}

/// Writes a file beside its name and renames it into place: a reader sees all of it or what was there before.
///
/// # Errors
/// Those of the file system and of `write`; nothing is left behind then.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    let written = File::create(&draft).and_then(|file| {
        let mut out = BufWriter::new(file);
        write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        std::fs::rename(&draft, path)
    });
    if written.is_err() {
        // Nothing to do about a draft that cannot be removed either: it has another name.
        let _ = std::fs::remove_file(&draft);
    }
    written
}
