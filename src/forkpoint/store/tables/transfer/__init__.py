"""Transfer: a family of conversations leaves a store as lines of a file, and comes into another one."""
