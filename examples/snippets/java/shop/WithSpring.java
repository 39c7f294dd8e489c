// Append with Spring's @Transactional. JDBC_URL=jdbc:postgresql://… java shop.WithSpring
package shop;

import java.util.UUID;
import javax.sql.DataSource;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DriverManagerDataSource;
import org.springframework.jdbc.support.JdbcTransactionManager;
import org.springframework.stereotype.Service;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;

public class WithSpring {
    @Service
    static class Orders {
        private final JdbcTemplate db;

        Orders(JdbcTemplate db) {
            this.db = db;
        }

        // Called through the bean. A call from within the class itself passes the proxy by and has no transaction.
        @Transactional
        public void place(int total) {
            var order = db.queryForObject("insert into orders (total) values (?) returning id", Long.class, total);
            db.queryForObject("select posthaste.append('orders.placed', ?::jsonb, key => ?)", UUID.class,
                    "{\"order\": " + order + "}", order);
            if (total <= 0) {
                throw new IllegalArgumentException("an order needs a total"); // rolls back: neither of the two
            }
        }
    }

    @Configuration
    @EnableTransactionManagement
    static class Shop { // Spring Boot does this from application.properties
        @Bean
        DataSource dataSource() {
            return new DriverManagerDataSource(System.getenv("JDBC_URL"));
        }

        @Bean
        PlatformTransactionManager transactionManager(DataSource dataSource) {
            return new JdbcTransactionManager(dataSource);
        }

        @Bean
        JdbcTemplate jdbcTemplate(DataSource dataSource) {
            return new JdbcTemplate(dataSource);
        }
    }

    public static void main(String[] arguments) {
        try (var context = new AnnotationConfigApplicationContext(Shop.class, Orders.class)) {
            var orders = context.getBean(Orders.class);
            orders.place(990);
            try {
                orders.place(0);
            } catch (IllegalArgumentException refused) {
                System.out.println("refused: " + refused.getMessage());
            }
        }
    }
}
