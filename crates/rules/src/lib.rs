//! Named profiles of rules that keep, edit or drop documents with the exact semantics of their origin, and predicates over document columns.
