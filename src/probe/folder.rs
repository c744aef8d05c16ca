//! The private folder of a run: workers keep compiled kernels in it. A run that was killed leaves it behind; a later run knows
//! by a lock that nobody uses it any more, and removes it. A lock is of the file, not of a process id, so this holds across
//! containers that share a temporary folder.

use std::{
    fs::{self, DirBuilder, File, TryLockError},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// First part of the name of a folder in use.
const NAME: &str = "peerproof-";
/// First part of its name until its lock is held: nobody else looks at those.
const UNBORN: &str = ".peerproof-";
/// The file that is locked.
const LOCK: &str = "lock";

/// A folder of this run, removed on drop.
pub(super) struct PrivateFolder {
    path: PathBuf,
    /// Held as long as the folder is used.
    _lock: File,
}

impl PrivateFolder {
    /// Makes one below the temporary folder, after removing what dead runs of the same user left there. Nothing where that
    /// cannot be: the run then goes without.
    pub(super) fn new() -> Option<PrivateFolder> {
        PrivateFolder::below(&std::env::temp_dir())
    }

    fn below(temporary: &Path) -> Option<PrivateFolder> {
        let stamp = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        let name = format!("{}-{stamp}", std::process::id());
        let unborn = temporary.join(format!("{UNBORN}{name}"));
        DirBuilder::new().mode(0o700).create(&unborn).ok()?;
        let made = lock(&unborn).and_then(|lock| {
            let path = temporary.join(format!("{NAME}{name}"));
            fs::rename(&unborn, &path).ok()?;
            Some(PrivateFolder { path, _lock: lock })
        });
        if made.is_none() {
            let _ = fs::remove_dir_all(&unborn);
        }
        if let Some(own) = &made {
            own.sweep(temporary);
        }
        made
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes folders of dead runs: of the same user, and with a lock that can be had.
    fn sweep(&self, temporary: &Path) {
        let Ok(user) = fs::symlink_metadata(&self.path).map(|data| data.uid()) else {
            return;
        };
        for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let ours = name.to_string_lossy().starts_with(NAME) && path != self.path;
            // A link is no folder of ours, and what is another user's is not touched, whoever runs this.
            let folder = fs::symlink_metadata(&path);
            if ours
                && folder.is_ok_and(|data| data.is_dir() && data.uid() == user)
                && let Ok(file) = File::open(path.join(LOCK))
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// Makes and locks the file.
fn lock(folder: &Path) -> Option<File> {
    let file = File::create_new(folder.join(LOCK)).ok()?;
    match file.try_lock() {
        Ok(()) => Some(file),
        // A file system without locks: nobody can take it for dead either, as they cannot lock it.
        Err(TryLockError::Error(_)) => Some(file),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_dead_runs_folder_goes_and_a_living_ones_stays() {
        let temporary = tempfile::tempdir().unwrap();
        let living = PrivateFolder::below(temporary.path()).unwrap();
        fs::write(living.path().join("kernel"), "compiled").unwrap();
        // As a killed run leaves it: the file is there, nobody holds its lock.
        let dead = temporary.path().join("peerproof-1-1");
        fs::create_dir(&dead).unwrap();
        File::create(dead.join(LOCK)).unwrap();
        fs::write(dead.join("kernel"), "compiled").unwrap();
        // Not ours: no lock file; only called alike; a link.
        fs::create_dir(temporary.path().join("peerproof-notes")).unwrap();
        fs::write(temporary.path().join("peerproof-host.json"), "{}").unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        File::create(elsewhere.path().join(LOCK)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), temporary.path().join("peerproof-2-2"))
            .unwrap();

        let second = PrivateFolder::below(temporary.path()).unwrap();
        assert!(!dead.exists());
        assert!(living.path().join("kernel").exists());
        assert!(elsewhere.path().join(LOCK).exists());
        assert_ne!(living.path(), second.path());
        drop((living, second));
        assert_eq!(
            names(temporary.path()),
            ["peerproof-2-2", "peerproof-host.json", "peerproof-notes"]
        );
    }
}
