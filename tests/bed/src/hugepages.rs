//! Huge pages. DPDK programs need them; weir and its guests do not.

use std::{fs, path::Path, thread, time::Duration};

use crate::error::{Error, Result};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

/// A write of 1 has the kernel drop cached files, which lie between free pages.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// A write has the kernel move pages, so that free memory is in one piece.
const COMPACT: &str = "/proc/sys/vm/compact_memory";

/// Attempts: memory that is full of cached files may not be free in large pieces at once.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Need of testpmd in pages of 2 MiB: its 256 MiB, and its rings.
const CLIENT: u64 = 136;
/// Need of OVS-DPDK and testpmd together.
const SWITCH_AND_CLIENT: u64 = 512;

/// A reservation of huge pages. The former number is restored when it is dropped.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
}

impl HugePages {
    /// Reserves the pages for one switch and one client, unless they are reserved already.
    pub fn reserve() -> Result<Self> {
        Self::at_least(SWITCH_AND_CLIENT)
    }

    /// Reserves the pages for one client, unless they are reserved already.
    pub fn for_client() -> Result<Self> {
        Self::at_least(CLIENT)
    }

    fn at_least(needed: u64) -> Result<Self> {
        let before = reserved()?;
        let pages = Self { before };
        let mut now = before;
        for attempt in 0..ATTEMPTS {
            if now >= needed {
                break;
            }
            if attempt > 0 {
                // Without the right to do this, the next attempt may still succeed.
                let _ = fs::write(DROP_CACHES, "1");
                let _ = fs::write(COMPACT, "1");
                thread::sleep(PAUSE);
            }
            set(needed)?;
            now = reserved()?;
        }
        if now < needed {
            let what = format!("{needed} huge pages of 2 MiB: the kernel gave {now}");
            return Err(Error::Check(what));
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
