//! The image, QEMU and weir, which every run of guests needs.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use crate::{
    error::Result,
    guest_image::GuestImage,
    netns, packages,
    qemu::Qemu,
    workspace::{Programs, Workspace},
};

/// The guests' image, the installed QEMU and the weir under test.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Directories of the workspace.
    pub workspace: Workspace,
    /// The guests' kernel and root file system.
    pub image: GuestImage,
    /// The QEMU that runs the guests.
    pub qemu: Qemu,
    /// The `weir` program.
    pub weir: PathBuf,
}

impl Lab {
    /// Installs missing packages, builds the image, and builds weir unless it is given. Needs root.
    pub fn prepare(workspace: Workspace, weir: Option<PathBuf>) -> Result<Self> {
        packages::ensure(&workspace)?;
        Self::with_packages(workspace, weir)
    }

    /// Prepares what `make demo-fabric` needs, which is less.
    pub fn prepare_fabric(workspace: Workspace, weir: Option<PathBuf>) -> Result<Self> {
        packages::ensure_fabric(&workspace)?;
        Self::with_packages(workspace, weir)
    }

    fn with_packages(workspace: Workspace, weir: Option<PathBuf>) -> Result<Self> {
        // Two steps of `make test` would build the same image.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        netns::clear_stale();
        workspace.clear_runs()?;
        let image = GuestImage::ensure(&workspace)?;
        let weir = match weir {
            Some(weir) => weir,
            None => Programs::build(&workspace)?.weir(),
        };
        Ok(Self { qemu: Qemu::installed()?, workspace, image, weir })
    }
}
