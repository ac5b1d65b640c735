//! A plan is a source and a list of stages over Arrow record batches; the executor here runs it on local threads within a memory budget.
