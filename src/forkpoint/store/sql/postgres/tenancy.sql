-- The second lock on tenants, for a store that is opened with `?rls=on`: the server itself shows a transaction no rows but
-- those of the tenant that `forkpoint.tenant` names. A transaction that has set none sees nothing at all. '*' is for what
-- goes over all tenants, such as collecting. Superusers and roles with BYPASSRLS see everything, whatever is set.

-- name: enable_tenancy
-- Puts a policy on every table of this store that has a column `tenant`, partitions too. Does nothing where there is one.
DO $$
DECLARE
  place record;
BEGIN
  FOR place IN
    SELECT relation.oid::regclass AS name FROM pg_class AS relation
    JOIN pg_attribute AS attribute ON attribute.attrelid = relation.oid AND attribute.attname = 'tenant'
    WHERE relation.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'conversation'::regclass)
      AND relation.relkind IN ('r', 'p') AND NOT attribute.attisdropped
      AND NOT EXISTS (SELECT 1 FROM pg_policy WHERE polrelid = relation.oid AND polname = 'one_tenant')
    ORDER BY relation.relname
  LOOP
    EXECUTE format(
      'CREATE POLICY one_tenant ON %s USING (current_setting(''forkpoint.tenant'', true) IN (tenant, ''*''))', place.name
    );
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', place.name);
    EXECUTE format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', place.name);
  END LOOP;
END
$$;

-- name: is_tenancy_enabled
-- Whether the tables of this store have their policies.
SELECT relrowsecurity AS enabled FROM pg_class WHERE oid = 'conversation'::regclass;

-- name: set_tenant
-- Whose rows this transaction may see.
SELECT set_config('forkpoint.tenant', :tenant, true);
