//! Huge pages. DPDK programs need them; weir and its guests do not.

use std::{fs, path::Path};

use crate::error::{Error, Result};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// Need of OVS-DPDK and testpmd together, in pages of 2 MiB.
const NEEDED: u64 = 512;

/// A reservation of huge pages. The former number is restored when it is dropped.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// Reserves the pages for one switch and one client, unless they are reserved already.
    pub fn reserve() -> Result<Self> {
        let before = reserved()?;
        let pages = Self { before };
        if before < NEEDED {
            set(NEEDED)?;
        }
        let now = reserved()?;
        if now < NEEDED {
            return Err(Error::parse("512 huge pages of 2 MiB", format!("the kernel gave {now}")));
        }
        Ok(pages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = set(self.before);
    }
}

fn reserved() -> Result<u64> {
    let path = Path::new(RESERVED);
    let text = fs::read_to_string(path).map_err(Error::io("read", path))?;
    text.trim().parse().map_err(|_| Error::parse("a number of huge pages", text))
}

fn set(pages: u64) -> Result<()> {
    let path = Path::new(RESERVED);
    fs::write(path, pages.to_string()).map_err(Error::io("write", path))
}
