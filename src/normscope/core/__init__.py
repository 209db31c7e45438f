"""Values that know what they guarantee, errors, statements: no knowledge of models."""
