//! Embeds `profiles/**/*.toml` into the library: a list of (path below `profiles/`, text). Does nothing else.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let variable = |name: &str| env::var_os(name).ok_or_else(|| io::Error::other(name.to_string()));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("profiles");
    let mut files = Vec::new();
    walk(&root, &mut files)?;
    files.sort();
    let mut list = String::from("&[\n");
    for file in &files {
        let name = file
            .strip_prefix(&root)
            .map_err(io::Error::other)?
            .to_string_lossy()
            .replace('\\', "/");
        list.push_str(&format!("    ({name:?}, include_str!({file:?})),\n"));
    }
    list.push_str("]\n");
    fs::write(
        PathBuf::from(variable("OUT_DIR")?).join("profiles.rs"),
        list,
    )
}

/// Collects the TOML files below `folder`; each folder is watched, so that a new file is seen.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "toml") {
            println!("cargo::rerun-if-changed={}", path.display());
            files.push(path);
        }
    }
    Ok(())
}
