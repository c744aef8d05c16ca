//! Files that a command writes for people and programs: refused early when they cannot become one, and never seen half
//! written, because they are written beside their name and renamed.

use super::exit::Stop;
use std::{
    fs::OpenOptions,
    io::{self, BufWriter, Write},
    os::unix::fs::OpenOptionsExt,
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
    // A rename would take the place of a device, a pipe or a socket, and as root nothing would stop it.
    if path.metadata().is_ok_and(|seen| !seen.is_file()) {
        return Err(Stop::usage(format!(
            "{option}: {shown} is no plain file (a device, pipe or socket), and would be replaced by one"
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

/// Refuses to write onto the file that is read: what it says would be lost.
pub(super) fn not_onto(option: &str, path: &Path, input: &Path) -> Result<(), Stop> {
    match (path.canonicalize(), input.canonicalize()) {
        (Ok(out), Ok(read)) if out == read => Err(Stop::usage(format!(
            "{option}: {} is the file that is read, and would be replaced; name another",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Writes a file beside its name and renames it into place: a reader sees all of it or what was there before. A link stays a
/// link: the file behind it is what is replaced.
///
/// # Errors
/// Those of the file system and of `write`; nothing is left behind then.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    put(path, 0o666, write)
}

/// The same, readable by its owner alone.
///
/// # Errors
/// As [`replace`].
pub(super) fn replace_private(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    put(path, 0o600, write)
}

fn put(
    path: &Path,
    mode: u32,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if path.metadata().is_ok_and(|seen| !seen.is_file()) {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut draft = path.as_os_str().to_owned();
    draft.push(".part");
    let draft = PathBuf::from(draft);
    // What stands there is a leftover, or somebody's trap in a folder of all: neither is written through.
    let _ = std::fs::remove_file(&draft);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft);
    let written = file.and_then(|file| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::{fs::symlink, net::UnixListener};

    #[test]
    fn what_is_read_is_not_written_onto_by_any_of_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let read = folder.path().join("report.json");
        std::fs::write(&read, "{}").unwrap();
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(&read, &link).unwrap();
        let around = folder.path().join(".").join("report.json");
        for out in [&read, &link, &around] {
            assert!(not_onto("--out", out, &read).is_err(), "{}", out.display());
        }
        assert!(not_onto("--out", &folder.path().join("other.json"), &read).is_ok());
    }

    #[test]
    fn what_is_no_plain_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("socket");
        let _listener = UnixListener::bind(&place).unwrap();
        assert!(check("--out", &place).is_err());
        assert!(replace(&place, |out| out.write_all(b"x")).is_err());
        assert!(!place.metadata().unwrap().is_file());
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_planted_draft_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let (file, victim) = (folder.path().join("file"), folder.path().join("victim"));
        std::fs::write(&victim, "old").unwrap();
        symlink(&victim, folder.path().join("file.part")).unwrap();
        replace(&file, |out| out.write_all(b"new")).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "old");
        assert!(file.symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn a_link_stays_one_and_its_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        check("--out", &link).unwrap();
        replace(&link, |out| out.write_all(b"new")).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
    }
}
