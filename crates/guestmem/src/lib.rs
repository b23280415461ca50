//! weir-guestmem
