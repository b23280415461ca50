//! What every run of guests needs, prepared once.

use std::path::PathBuf;

use crate::{
    error::Result, guest_image::GuestImage, netns, packages, qemu::Qemu, release::Programs,
    workspace::Workspace,
};

/// The guests' image, the installed QEMU and the weir under test.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Where things are.
    pub workspace: Workspace,
    /// What guests boot from.
    pub image: GuestImage,
    /// What they boot under.
    pub qemu: Qemu,
    /// The `weir` program.
    pub weir: PathBuf,
}

impl Lab {
    /// Installs what is missing, builds the image and, unless one is given, weir. Needs root.
    pub fn prepare(workspace: Workspace, weir: Option<PathBuf>) -> Result<Self> {
        packages::ensure(&workspace)?;
        Self::with_packages(workspace, weir)
    }

    /// The same for `make demo-fabric`, which takes less.
    pub fn prepare_fabric(workspace: Workspace, weir: Option<PathBuf>) -> Result<Self> {
        packages::ensure_fabric(&workspace)?;
        Self::with_packages(workspace, weir)
    }

    fn with_packages(workspace: Workspace, weir: Option<PathBuf>) -> Result<Self> {
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
