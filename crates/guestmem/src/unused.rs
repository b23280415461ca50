//! Pages that belong to weir itself, which it has used and does not need for now. They go back to
//! the system, and come again when they are next used.

use std::ffi::c_void;
use std::ops::Range;

use libc::{PF_W, PT_LOAD, dl_iterate_phdr, dl_phdr_info};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;

/// Unmaps the code and the constants of the program and its libraries. Their pages stay in the
/// system's cache, where all processes of the program share them. This process maps again those
/// pages that it still uses, which are few of the pages that it needed at its start.
pub fn leave_program() {
    // SAFETY: the function has the type that is asked for, and does not unwind.
    unsafe { dl_iterate_phdr(Some(leave_object), std::ptr::null_mut()) };
}

/// Unmaps the code and the constants of one object: the program, or one of its libraries.
unsafe extern "C" fn leave_object(info: *mut dl_phdr_info, _: usize, _: *mut c_void) -> i32 {
    // SAFETY: the C library passes a valid structure with a table of this many headers.
    let (info, headers) = unsafe {
        let info = &*info;
        (info, std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()))
    };
    // SAFETY: the call only asks.
    if info.dlpi_addr == unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } {
        // The kernel's own object has no file.
        return 0;
    }
    for header in headers.iter().filter(|it| it.p_type == PT_LOAD && it.p_flags & PF_W == 0) {
        let start = (info.dlpi_addr + header.p_vaddr) as usize;
        let pages = whole_pages(start..start + header.p_filesz as usize);
        // SAFETY: nothing writes to these pages, which are the file's: they are read again as they were. A page that is
        // shared with another segment is left out.
        let _ = unsafe { madvise(pages.start as *mut c_void, pages.len(), Advice::LinuxDontNeed) };
    }
    0
}

/// The pages that lie in a range as a whole.
fn whole_pages(range: Range<usize>) -> Range<usize> {
    let page = page_size();
    let start = range.start.next_multiple_of(page);
    start..(range.end / page * page).max(start)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The resident bytes of the mapping with this address.
    pub(crate) fn resident(address: usize) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_in = false;
        for line in smaps.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            let range = first.split_once('-').and_then(|(start, end)| {
                Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
            });
            if let Some(range) = range {
                is_in = range.contains(&address);
            } else if is_in && first == "Rss:" {
                let kib = line.split_whitespace().nth(1).unwrap();
                return 1024 * kib.parse::<usize>().unwrap();
            }
        }
        panic!("{address:#x} is not mapped");
    }

    #[test]
    fn the_program_is_resident_as_far_as_it_is_used_again() {
        let code = (leave_program as fn()) as usize;
        let used = resident(code);
        leave_program();
        let left = resident(code);
        assert!(left < used, "{left} of {used}");
        assert!(whole_pages(1..2).is_empty(), "it goes on");
    }

    #[test]
    fn only_whole_pages_are_given_back() {
        let page = page_size();
        assert_eq!(whole_pages(1..3 * page + 1), page..3 * page);
        assert_eq!(whole_pages(page..2 * page), page..2 * page);
        assert!(whole_pages(page + 1..2 * page - 1).is_empty());
    }
}
