//! Times programs without running them: discrete events over instructions and links.
