//! Files that are kept between runs for one adapter: compiled pipelines, measured choices. Each is named by adapter, driver and
//! version of this crate, begins with a checksum, and is replaced as a whole. Whatever is wrong with one, it counts as absent.

use super::profile::Profile;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};

/// One such file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    path: PathBuf,
}

const CHECKSUM: usize = 32;
/// Nothing that is kept comes near this.
const LARGEST: u64 = 256 << 20;

impl Kept {
    /// The file called `name` for the adapter of `profile` in `folder`, which need not exist.
    pub fn new(folder: &Path, name: &str, profile: &Profile) -> Self {
        Self::for_key(folder, name, &[], profile)
    }

    /// As [`new`](Self::new), for one of several things that are kept under this name; `key` says which.
    pub fn for_key(folder: &Path, name: &str, key: &[u8], profile: &Profile) -> Self {
        let Profile { backend, vendor, .. } = profile;
        let mut hash = Sha256::new();
        for part in [profile.name.as_bytes(), profile.driver.as_bytes(), env!("CARGO_PKG_VERSION").as_bytes(), key] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Self { path: folder.join(format!("{name}-{backend}-{vendor:04x}-{hash}.bin")) }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its content, if it is there and whole.
    pub fn read(&self) -> Option<Vec<u8>> {
        let size = fs::metadata(&self.path).ok().filter(fs::Metadata::is_file)?.len();
        if size > LARGEST {
            return None;
        }
        let bytes = fs::read(&self.path).ok()?;
        let (sum, content) = bytes.split_at_checked(CHECKSUM)?;
        (checksum(content) == sum).then(|| content.to_vec())
    }

    /// Replaces it.
    ///
    /// # Errors
    /// The folder cannot be made or written; the message names the file.
    pub fn write(&self, content: &[u8]) -> Result<()> {
        let failed = |error: std::io::Error| Error::config(format!("cannot keep {}: {error}", self.path.display()));
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        // Another process may do the same; the last one wins, and neither leaves half a file.
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        let written = fs::write(&temporary, [&checksum(content)[..], content].concat());
        let renamed = written.and_then(|()| fs::rename(&temporary, &self.path));
        if renamed.is_err() {
            // It may not even exist.
            let _ = fs::remove_file(&temporary);
        }
        renamed.map_err(failed)
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM] {
    Sha256::digest(content).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_comes_back_and_damage_counts_as_absence() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::new(&folder.path().join("new"), "test", &Profile::cuda_class());
        assert_eq!(kept.read(), None);
        for content in [&b"pipelines"[..], b"", b"others"] {
            kept.write(content).unwrap();
            assert_eq!(kept.read().as_deref(), Some(content));
        }
        let whole = fs::read(kept.path()).unwrap();
        for length in [0, 31, whole.len() - 1] {
            fs::write(kept.path(), &whole[..length]).unwrap();
            assert_eq!(kept.read(), None, "{length} bytes of it");
        }
        let mut bent = whole;
        bent[CHECKSUM + 2] ^= 1;
        fs::write(kept.path(), bent).unwrap();
        assert_eq!(kept.read(), None);
        assert_eq!(fs::read_dir(kept.path().parent().unwrap()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn adapters_drivers_and_kinds_have_files_of_their_own() {
        let folder = Path::new("cache");
        let plain = Profile::cuda_class();
        let kept = Kept::new(folder, "a", &plain);
        assert_eq!(kept, Kept::new(folder, "a", &Profile { f16: false, ..plain.clone() }));
        assert_eq!(kept, Kept::for_key(folder, "a", &[], &plain));
        let others = [
            Kept::new(folder, "b", &plain),
            Kept::for_key(folder, "a", b"model", &plain),
            Kept::new(folder, "a", &Profile { driver: "newer".into(), ..plain.clone() }),
            Kept::new(folder, "a", &Profile { name: "other card".into(), ..plain.clone() }),
            Kept::new(folder, "a", &Profile { backend: "metal".into(), ..plain }),
        ];
        assert!(others.iter().all(|other| *other != kept), "{others:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let message = Kept::new(&file, "a", &Profile::cuda_class()).write(b"x").unwrap_err().to_string();
        assert!(message.contains("cannot keep") && message.contains("file"), "{message}");
    }
}
