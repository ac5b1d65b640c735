//! Named character references (HTML standard, section 13.5), sorted by name. The third value tells those that are
//! also known without their semicolon. The list was written by a script from the standard's; it is not to be edited.

pub(super) static NAMED: [(&str, &str, bool); 2125] = include!("named.in");
