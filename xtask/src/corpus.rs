//! Corpora of the fuzz targets: in the repository one archive of tar for each, below `target/` a folder of files.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use weir_bed::{
    error::{Error, Result, check},
    process::run,
};

/// Options with which the same files always make the same archive, whoever packs them.
const REPRODUCIBLE: [&str; 7] = [
    "--format=ustar",
    "--sort=name",
    "--mtime=@0",
    "--owner=0",
    "--group=0",
    "--numeric-owner",
    "--mode=0644",
];

/// Archive of a target's corpus; `root` is the folder `fuzz`.
pub fn archive(root: &Path, target: &str) -> PathBuf {
    root.join("corpus").join(target).with_extension("tar")
}

/// Makes `dir` the folder of the files in `archive`, and of no others.
pub fn unpack(archive: &Path, dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("empty", dir)(error));
        }
        _ => fs::create_dir_all(dir).map_err(Error::io("make", dir))?,
    }
    let command = ["tar".as_ref(), "-xf".as_ref(), archive.as_os_str(), "-C".as_ref()];
    run(&[&command[..], &[dir.as_os_str()]].concat())?;
    Ok(())
}

/// Packs the files of `dir`. The archive before stays until the new one is whole.
pub fn pack(dir: &Path, archive: &Path) -> Result<()> {
    let names = names(dir)?;
    check(!names.is_empty(), || format!("{} has no input", dir.display()))?;
    let new = archive.with_extension("new");
    let mut command: Vec<OsString> = vec!["tar".into()];
    command.extend(REPRODUCIBLE.map(OsString::from));
    command.extend(["-cf".into(), new.clone().into(), "-C".into(), dir.into(), "--".into()]);
    command.extend(names);
    run(&command)?;
    fs::rename(&new, archive).map_err(Error::io("write", archive))
}

fn names(dir: &Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(dir).map_err(Error::io("list", dir))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use weir_bed::workspace::Workspace;

    use super::*;

    #[test]
    fn each_fuzz_target_has_an_archive_that_packs_again_to_the_same_bytes() {
        let workspace = Workspace::find().unwrap();
        let root = workspace.root.join("fuzz");
        let targets = crate::fuzz::targets(&root).unwrap();
        let scratch = workspace.run_dir("corpus").unwrap();
        for target in &targets {
            let (committed, dir) = (archive(&root, target), scratch.join(target));
            unpack(&committed, &dir).unwrap();
            let inputs = names(&dir).unwrap().len();
            assert!(inputs >= 20, "{target}: {inputs} inputs");
            let again = dir.with_extension("tar");
            pack(&dir, &again).unwrap();
            let same = fs::read(&again).unwrap() == fs::read(&committed).unwrap();
            assert!(same, "{target}: cargo run -p xtask -- fuzz --only {target} --keep");
        }
        let files: Vec<OsString> =
            targets.iter().map(|target| format!("{target}.tar").into()).collect();
        assert_eq!(names(&root.join("corpus")).unwrap(), files, "fuzz/corpus");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn a_missing_archive_is_an_error_and_an_old_input_does_not_stay() {
        let scratch = Workspace::find().unwrap().run_dir("corpus").unwrap();
        let (dir, packed) = (scratch.join("dir"), scratch.join("a.tar"));
        unpack(&packed, &dir).unwrap_err();
        pack(&dir, &packed).unwrap_err();
        fs::write(dir.join("input"), "1").unwrap();
        pack(&dir, &packed).unwrap();
        fs::write(dir.join("old"), "2").unwrap();
        unpack(&packed, &dir).unwrap();
        assert_eq!(names(&dir).unwrap(), ["input"]);
        fs::remove_dir_all(scratch).unwrap();
    }
}
